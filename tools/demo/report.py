"""The last page of the demo: four balances for every account, and the figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.demo.figures import Balances, Counts, Latency

SHOWN_ACCOUNTS = 5


@dataclass(slots=True)
class Outcome:
    """What the demo found.  ``relay`` and ``archive`` stay None when the platform was left out."""

    bank: Balances
    projection: Balances
    counts: Counts
    latency: Latency
    bank_seconds: float
    catch_up_seconds: float
    relay: Balances | None = None
    archive: Balances | None = None
    relayed_events: int = 0
    archived_events: int = 0
    platform_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def different(self) -> list[int]:
        """The accounts whose balances are not all equal."""
        copies = [self.projection, *(c for c in (self.relay, self.archive) if c is not None)]
        accounts = set(self.bank).union(*copies)
        return sorted(
            account
            for account in accounts
            if any(copy.get(account, 0) != self.bank.get(account, 0) for copy in copies)
        )

    @property
    def equal(self) -> bool:
        """Whether all balances agree, the order was kept, and no event is missing or left over."""
        counted = [
            number
            for number, copy in (
                (self.relayed_events, self.relay),
                (self.archived_events, self.archive),
            )
            if copy is not None
        ]
        return (
            bool(self.bank)
            and not self.different()
            and self.counts.disorder == 0
            and self.latency.events == self.counts.events
            and all(number == self.counts.events for number in counted)
        )


def show(console: Console, outcome: Outcome, seconds: float, directory: Path) -> None:
    """Print the tables, the verdict and how to look further."""
    console.print(_balances(outcome))
    console.print(_figures(outcome, seconds))
    for note in outcome.notes:
        console.print(note)
    if outcome.equal:
        console.print("[bold green]All balances are equal.[/]")
    else:
        wrong = outcome.different()
        console.print(
            f"[bold red]{len(wrong)} accounts differ[/] (events applied "
            f"{outcome.latency.events:,}, published {outcome.counts.events:,}, "
            f"out of order {outcome.counts.disorder:,})"
        )
    console.print(
        f"Look at what it left in Dagster: [bold]make dev DEMO=1[/]   (data: {directory})"
    )


def _balances(outcome: Outcome) -> Table:
    wrong = outcome.different()
    chosen = wrong[:SHOWN_ACCOUNTS] or sorted(outcome.bank)[:SHOWN_ACCOUNTS]
    accounts = sorted(set(outcome.bank) | set(wrong))
    table = Table(title="Balances, four ways", caption=f"{len(accounts):,} accounts compared")
    for name in ("account", "bank", "projection", "relayed file", "archive (Spark)"):
        table.add_column(name, justify="right")
    table.add_column("")
    for account in chosen:
        table.add_row(str(account), *_row(outcome, [account]), _mark(account not in wrong))
    table.add_section()
    table.add_row("turnover of all", *_row(outcome, accounts), _mark(not wrong))
    return table


def _row(outcome: Outcome, accounts: list[int]) -> list[str]:
    copies = (outcome.bank, outcome.projection, outcome.relay, outcome.archive)
    return [
        "-"
        if copy is None
        else f"{sum(abs(copy.get(each, 0)) for each in accounts):,}"
        if len(accounts) > 1
        else f"{copy.get(accounts[0], 0):,}"
        for copy in copies
    ]


def _mark(good: bool) -> str:
    return "[green]equal[/]" if good else "[red]different[/]"


def _figures(outcome: Outcome, seconds: float) -> Table:
    counts, latency = outcome.counts, outcome.latency
    table = Table(show_header=False, title="Figures")
    table.add_column()
    table.add_column(justify="right")
    rows = (
        ("events published", f"{counts.events:,}"),
        ("events of rolled-back transactions, never seen", f"{counts.rolled_back:,}"),
        ("published a second", f"{counts.events / outcome.bank_seconds:,.0f}"),
        ("projection caught up after the bank closed", f"{outcome.catch_up_seconds:.1f} s"),
        ("commit to handler, p50", f"{latency.p50:,.1f} ms"),
        ("commit to handler, p99 (kill and pauses included)", f"{latency.p99:,.1f} ms"),
        ("take-overs of leases", f"{counts.take_overs:,}"),
        ("events handed out again", f"{counts.redeliveries:,}"),
        ("stale commits that were refused", f"{counts.refused_commits:,}"),
        ("open transactions that the database ended", f"{counts.sessions_ended:,}"),
        ("relay, seal, archive and clean by Dagster", f"{outcome.platform_seconds:.1f} s"),
        ("whole demo", f"{seconds:.1f} s"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table
