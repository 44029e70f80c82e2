"""A real OpenID provider (django-oauth-toolkit) as a program of its own: it has one client and some people.

``python -m tests.support.openid_provider FOLDER REDIRECT_URI SECRET NAME...``; without a SECRET the client is public.
Everybody's password is `PASSWORD`, and their name is the claim `preferred_username`.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from tests.support.background_server import BackgroundServer

CLIENT, PASSWORD = "queuebell-page", "not a good one"
_FORM = "<form method=post>{% csrf_token %}{{ form }}<button>Log in</button></form>"


def provider(folder: pathlib.Path, redirect_uri: str, *people: str, secret: str = "") -> BackgroundServer:
    """A provider on a port that it chooses, not started yet; its ``url`` is the issuer."""
    words = [sys.executable, "-m", __name__, str(folder), redirect_uri, secret, *people]
    return BackgroundServer(words, r"serves as (\S+)")


def main() -> None:
    """Serve until somebody ends it."""
    import django
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from django.conf import settings
    from django.core.management import call_command
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    folder, redirect_uri, secret, *people = sys.argv[1:]
    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    issuer = f"http://127.0.0.1:{server.server_address[1]}/o"
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    settings.configure(
        SECRET_KEY="known to everybody",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.support.openid_urls",
        LOGIN_URL="/login/",
        INSTALLED_APPS=[
            "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/people.db"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {
                    "loaders": [
                        ("django.template.loaders.locmem.Loader", {"registration/login.html": _FORM}),
                        "django.template.loaders.app_directories.Loader",
                    ],
                    "context_processors": [
                        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                    ],
                },
            }
        ],
        USE_TZ=True,
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_ISS_ENDPOINT": issuer,
            "OIDC_RSA_PRIVATE_KEY": key.decode(),
            "OAUTH2_VALIDATOR_CLASS": "tests.support.openid_urls.Named",
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "Say who you are"},
        },
    )  # fmt: skip
    django.setup()
    call_command("migrate", verbosity=0)
    _fill(redirect_uri, secret, people)
    server.set_app(get_wsgi_application())
    sys.stdout.write(f"serves as {issuer}\n")
    sys.stdout.flush()
    server.serve_forever()


def _fill(redirect_uri: str, secret: str, people: list[str]) -> None:
    from django.contrib.auth import get_user_model
    from oauth2_provider.models import get_application_model

    model: Any = get_application_model()
    model.objects.create(
        client_id=CLIENT,
        client_secret=secret,
        client_type="confidential" if secret else "public",
        authorization_grant_type="authorization-code",
        redirect_uris=redirect_uri,
        algorithm="RS256",
    )
    for name in people:
        get_user_model().objects.create_user(name, password=PASSWORD)


if __name__ == "__main__":
    main()
