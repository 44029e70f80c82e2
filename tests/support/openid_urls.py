"""What the OpenID provider of the tests serves, and what it says of people."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import LoginView
from django.urls import include, path
from oauth2_provider.oauth2_validators import OAuth2Validator


class Named(OAuth2Validator):  # type: ignore[misc]
    """Says people's names, and not only their numbers."""

    oidc_claim_scope = None

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        """Return what its tokens say besides."""
        return {"preferred_username": request.user.username}


urlpatterns = [path("login/", LoginView.as_view()), path("o/", include("oauth2_provider.urls"))]
