// Signing in at an issuer (OpenID Connect). The bridge asks the issuer; what was begun, and the token that comes of it,
// are in this tab and nowhere else, so that a sign-in that somebody else began is not taken for one of this tab's.

const BEGUN = "queuebell-login";
const WHO = "queuebell-who";
const LASTS_MS = 600000;

export const who = () => sessionStorage.getItem(WHO);

export function forget() {
  sessionStorage.removeItem(WHO);
}

// The token that the issuer's answer in the address stands for, null where there is none; throws what to tell.
export async function returned() {
  const said = new URLSearchParams(location.search);
  if (!said.has("code") && !said.has("error")) return null;
  const begun = JSON.parse(sessionStorage.getItem(BEGUN) ?? "null");
  sessionStorage.removeItem(BEGUN);
  history.replaceState(null, "", `/${begun?.where ?? ""}`);
  if (!begun || said.get("state") !== begun.state) throw new Error("This sign-in was not started in this tab, or is over. Sign in again.");
  if (Date.now() - begun.at > LASTS_MS) throw new Error("This sign-in took more than ten minutes. Sign in again.");
  if (said.has("error")) throw new Error(said.get("error") === "access_denied" ? "The issuer did not let you in (access_denied)." : "The issuer ended the sign-in. Sign in again; its log has the reason.");
  const answer = await fetch("/v1/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ code: said.get("code"), verifier: begun.verifier, iss: said.get("iss") ?? undefined }),
    cache: "no-store",
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail);
  sessionStorage.setItem(WHO, told.principal);
  return told.token;
}

// Offer to sign in, where the bridge has an issuer for it.
export async function offer() {
  const place = document.getElementById("issuer");
  let told;
  try {
    const answer = await fetch("/v1/login", { cache: "no-store" });
    if (answer.status === 404) return;
    told = await answer.json();
    if (!answer.ok) throw new Error(told.detail);
  } catch (error) {
    place.textContent = `Sign-in is not available: ${error.message}`;
    place.hidden = false;
    return;
  }
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Sign in at ${new URL(told.issuer).host}`;
  button.addEventListener("click", () => {
    if (new URL(told.page).origin === location.origin) {
      sessionStorage.setItem(BEGUN, JSON.stringify({ state: told.state, verifier: told.verifier, at: Date.now(), where: location.hash }));
      location.assign(told.address);
      return;
    }
    // The issuer sends browsers back there alone, and what a tab keeps is for one address.
    const there = document.createElement("a");
    there.href = told.page;
    there.textContent = told.page;
    place.replaceChildren("Sign in at the address that the issuer knows: ", there);
  });
  place.replaceChildren(button);
  place.hidden = false;
}
