"""docs/reference/gateway.md: its commands run, and its table of calls is the gateway's own."""

from __future__ import annotations

import json
import os
import re
import subprocess

from consumers.gateway.app import OPERATIONS
from consumers.gateway.operations import ALWAYS
from tests.contract.gateway.kit import Gateway, send
from tests.contract.gateway.page_kit import KEY as PAGE_KEY, Visitor
from tests.contract.pages.blocks import text_of
from tools import gateway_page

PAGE = "docs/reference/gateway.md"


def test_the_table_of_calls_is_that_of_the_page() -> None:
    page = text_of(PAGE)
    assert gateway_page.made(page) == page, "write it again: python -m tools.gateway_page"


def test_the_commands_of_the_page_run(gateway: Gateway, shared_page: Visitor) -> None:
    shop = gateway.client("shop")  # as the page has it
    assert shop.key is not None
    environment = os.environ | {
        "URL": f"http://127.0.0.1:{gateway.port}",
        "KEY": f"{shop.key.key_id}.{shop.key.secret}",
        "PAGE": f"http://127.0.0.1:{shared_page.port}",
        "PAGE_KEY": PAGE_KEY,
    }
    blocks = re.findall(r"```bash\n(.*?)```", text_of(PAGE), re.DOTALL)
    assert len(blocks) == 5
    with gateway.sequencing():
        for block in blocks:
            done = subprocess.run(
                ["bash", "-e", "-c", block], env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)


def test_openapi_has_every_call_with_its_codes(gateway: Gateway) -> None:
    page = json.loads(send(gateway.port, "GET", "/openapi.json").body)
    assert page["openapi"] == "3.1.0"
    for each in OPERATIONS:
        described = page["paths"][each.whole_path.replace(":path", "")][each.method.lower()]
        assert {int(code) for code in described["responses"]} == {*each.answers, *ALWAYS}
        named = {one["name"] for one in described["parameters"] if one["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)", each.whole_path))


def test_the_python_of_the_page_runs(gateway: Gateway) -> None:
    shop = gateway.client("shop")
    assert shop.key is not None
    shop("POST", "/topics", {"topic": "orders/eu"})
    shop("POST", "/queues", {"queueName": "mails"})
    shop("POST", "/subscriptions", {"subscription": "billing", "topics": ["orders/eu"]})
    names = {
        "URL": f"http://127.0.0.1:{gateway.port}",
        "KEY": f"{shop.key.key_id}.{shop.key.secret}",
    }
    blocks = re.findall(r"```python\n(.*?)```", text_of(PAGE), re.DOTALL)
    assert len(blocks) == 1
    with gateway.sequencing():
        exec(compile(blocks[0], PAGE, "exec"), names)
