"""When the certificates of a PEM file end, read from its bytes. Pure.

Native code reports on the peer's certificate only, and a server's host need not have the openssl
program. DER is parsed as far as the field `validity` (RFC 5280, 4.1). Nothing is verified: OpenSSL
has accepted the file before. Not here: which certificates are trusted, and when files are read
again (tls.py).
"""

import base64
import binascii
import calendar
import re
import time
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # two digits of a year, from 1950 to 2049
_GENERALIZED_TIME: Final = 0x18  # four digits
_LONG_FORM: Final = 0x80
_LENGTH_OCTETS_MAX: Final = 4


def end_of_certificates(pem: bytes) -> int:
    """The Unix time when the first of them ends. Raises ValueError when one cannot be read."""
    ends = [_not_after(_octets(match[1])) for match in _PEM.finditer(pem)]
    if not ends:
        raise ValueError("there is no certificate in it")
    return min(ends)


def _octets(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a certificate is not base64: {error}") from error


def _not_after(der: bytes) -> int:
    """Certificate → tbsCertificate → validity, which follows serial number, signature and
    issuer."""
    _, certificate, _ = _element(der, 0)
    _, at, _ = _element(der, certificate)
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in range(3):
        _, _, at = _element(der, at)
    _, validity, _ = _element(der, at)
    _, _, not_before_end = _element(der, validity)
    tag, start, end = _element(der, not_before_end)
    return _seconds(tag, der[start:end])


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the element at offset `at`, and the offsets where its contents begin and end."""
    if at + 2 > len(der):
        raise ValueError("a certificate is cut off")
    tag, length, start = der[at], der[at + 1], at + 2
    if length >= _LONG_FORM:
        count = length - _LONG_FORM
        if not 0 < count <= _LENGTH_OCTETS_MAX:
            raise ValueError("a certificate is not in DER")
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + length > len(der):
        raise ValueError("a certificate is cut off")
    return tag, start, start + length


def _seconds(tag: int, said: bytes) -> int:
    text = said.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("a certificate does not say when it ends")
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))
