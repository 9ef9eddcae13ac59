"""Says why the certificate of a server is not accepted, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

__all__ = ["why_not_trusted"]

# https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error
NOT_YET_VALID, EXPIRED = 9, 10
OTHER_HOST = frozenset((62, 64))
UNTRUSTED = frozenset((2, 7, 18, 19, 20, 21))


def why_not_trusted(error: ssl.SSLCertVerificationError, host: str, server: str, store: str) -> str:
    """Return a text that completes "... at host:port".

    Args:
        error: What `ssl` reports.
        host: The host that the certificate must name.
        server: Which server has to renew it, such as `broker`.
        store: The setting that names the certificates that are trusted.
    """
    code = error.verify_code
    if code == EXPIRED:
        return f"has a certificate that has expired: renew it on the {server}"
    if code == NOT_YET_VALID:
        return "has a certificate that is not valid yet: is the clock of this machine right?"
    if code in OTHER_HOST:
        return f"has a certificate that does not name {host}: use a name that is in it, or issue one with this name"
    if code in UNTRUSTED:
        return (
            f"has a certificate that is not trusted: put the certificate of the authority that signed it into {store}"
        )
    return f"has a certificate that is not accepted: {error.verify_message}"
