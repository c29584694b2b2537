"""CassieQ's signatures, against one that another client of it has made."""

from __future__ import annotations

import pytest

from consumers.gateway.credentials.shown import BadCredentials, ShownRequest
from consumers.gateway.credentials.weak_signatures import read, request_base, signed
from consumers.gateway.settings import gateway_options, gateway_settings
from penstock.errors import ConfigurationError

NOW = 1_460_410_079.0  # 2016-04-11T21:27:59Z
KEY = "cN706OCyyDSzx03gju35TG2wVKCDyMx-_2s_Dcu9TVIDQif-iGKNYv0P3Gi2OffXlB4zpVx-GYaHBucrIY9vYw"
KNOWN = "LlK-olMhrBbSaUAir_kDJZUtlVWx1qkOp-APecO3wlM"
PATH = "/queues/test_queue/messages/next"


def test_a_signature_of_its_ruby_client_is_made_again() -> None:
    base = request_base("test-account", "GET", PATH, "2016-04-11T21:27:59Z")
    assert signed(KEY, base) == KNOWN
    headers = {"authorization": f"Signed {KNOWN}", "x-cassieq-request-time": "2016-04-11T21:27:59Z"}
    found = read(ShownRequest("GET", PATH, "", headers), "test-account", NOW, is_safe=False)
    assert found is not None and found.is_by(KEY)


@pytest.mark.parametrize(
    ("authorization", "time", "query"),
    [
        ("Signed", "2016-04-11T21:27:59Z", ""),
        (f"Signed {KNOWN}", "", ""),
        (f"Signed {KNOWN}", "2016-04-11T21:27:59", ""),
        (f"Signed {KNOWN}", "2016-13-11T21:27:59Z", ""),
        (f"Signed {KNOWN}!", "2016-04-11T21:27:59Z", ""),
        ("Key \xe9", "", ""),
        ("", "", f"sig={KNOWN}"),
        ("", "", f"auth=x&sig={KNOWN}"),
        ("", "", f"auth=r&auth=p&sig={KNOWN}"),
        ("", "", f"auth=r&sig={KNOWN}&et="),
        ("", "", f"auth=r&sig={KNOWN}&q=a%0Ab"),
        ("", "", f"auth=r&sig={KNOWN}&et=tomorrow"),
        ("", "", f"auth=r&sig={KNOWN}&%ff"),
    ],
)
def test_what_could_not_be_good_is_refused(authorization: str, time: str, query: str) -> None:
    headers = {"authorization": authorization, "x-cassieq-request-time": time}
    with pytest.raises(BadCredentials):
        read(ShownRequest("GET", PATH, query, headers), "test-account", NOW, is_safe=True)


def test_a_bare_key_needs_a_safe_road_and_other_credentials_are_left_alone() -> None:
    bare = ShownRequest("GET", PATH, "", {"authorization": f"Key {KEY}"})
    assert read(bare, "shop", NOW, is_safe=True) is not None
    with pytest.raises(BadCredentials):
        read(bare, "shop", NOW, is_safe=False)
    for headers, query in [
        ({"authorization": "Key id.secret"}, ""),
        ({}, "v=2&sig=x"),
        ({"signature-input": "x"}, ""),
        ({}, ""),
    ]:
        assert read(ShownRequest("GET", PATH, query, headers), "shop", NOW, is_safe=True) is None


@pytest.mark.parametrize("text", ["a.secret", "x" * 15, ",".join(["x" * 24] * 65), "a b"])
def test_what_is_no_list_of_ids_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        gateway_settings("postgresql://x/y", gateway_options({"compatible_keys": text}, {}))
    assert text not in str(caught.value)
