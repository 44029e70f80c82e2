// Puts by node's `pg` as a stranger would: reads [[statement, kind, value], ...] from standard input.
const { Client } = require("pg");

async function main() {
  const calls = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const client = new Client({ connectionString: process.argv[2] });
  await client.connect();
  await client.query("SELECT set_config('search_path', $1, false)", [process.argv[3]]);
  for (const [statement, kind, value] of calls) {
    const given = kind === "bytea" ? Buffer.from(value, "utf8") : kind === "jsonb" ? JSON.parse(value) : value;
    await client.query(statement, [process.argv[4], given]);
  }
  await client.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
