"""The flags of a command, made from the options of a class of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import typer

from penstock.upkeep.options import Option

Function = TypeVar("Function", bound=Callable[..., Any])


def takes(options: Mapping[str, Option]) -> Callable[[Function], Function]:
    """Give the command below a flag for each option.  It gets each as text, by name, or None.

    The function's own parameters come first, and its ``**given`` are the options.
    """

    def decorate(function: Function) -> Function:
        own = [
            each
            for each in inspect.signature(function, eval_str=True).parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters = [*own, *_parameters(options)]
        changed: Any = function
        changed.__signature__ = inspect.Signature(parameters)
        changed.__annotations__ = {each.name: each.annotation for each in parameters}
        return function

    return decorate


def _parameters(options: Mapping[str, Option]) -> Iterator[inspect.Parameter]:
    for name, option in options.items():
        told = f"{option.about}; one of {', '.join(option.words)}" if option.words else option.about
        default = ",".join(option.default) if isinstance(option.default, tuple) else option.default
        flag = typer.Option(
            option.flag(name),
            metavar=option.kind.upper(),
            help=f"{told} [{default}]" if default else told,
        )
        kind = list[str] if option.kind == "pairs" else str
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, flag],
        )
