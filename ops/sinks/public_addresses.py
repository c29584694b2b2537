"""Which internet addresses are public: a table of our own, the same on every version of Python.

``ipaddress.is_global`` is no guard. On Python 3.11 it is true for ``::127.0.0.1``,
``64:ff9b::7f00:1``, ``2002:7f00:1::``, ``fec0::1`` and ``168.63.129.16``, and it changes between
versions. Of IPv6 only what is listed is public; of IPv4 everything but what is listed.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NOT_PUBLIC = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",  # Azure's host, which every machine there reaches
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
#: Networks whose last 32 bits are an IPv4 address that is reached through them.
_WRAPPERS = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))


def parsed(text: str) -> IPv4Address | IPv6Address:
    """The address that is reached: an IPv4 one that is wrapped in IPv6 is unwrapped."""
    found = ip_address(text.partition("%")[0])
    if isinstance(found, IPv6Address) and any(found in each for each in _WRAPPERS):
        return IPv4Address(int(found) & 0xFFFFFFFF)
    return found


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address, unwrapped by ``parsed``, is one of the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in each for each in _NOT_PUBLIC)
    return address in _PUBLIC_6 and not any(address in each for each in _NOT_PUBLIC_6)
