"""The words of commands, read sooner: most of the time of a call goes into finding what does not change."""

import copy
import functools
import importlib
from types import SimpleNamespace
from typing import Any


def find_options_once() -> None:
    """The options of a command and the groups of commands are the same in each call. From now on they are found once
    in this process, and every call gets copies of the options, without words.
    """
    options: Any = importlib.import_module("cyclopts.argument._collection").ArgumentCollection
    find_once = functools.cache(options._from_callable)

    def found(*words: Any, reserved: Any = (), **named: Any) -> Any:
        kept = find_once(*words, reserved=tuple(reserved), **named)
        copies = {id(option): copy.copy(option) for option in kept}
        for option in copies.values():
            option.tokens = []
            option.children = options(copies[id(child)] for child in option.children)
        return options(copies.values())

    options._from_callable = found
    stack: Any = importlib.import_module("cyclopts.app_stack")
    find_groups = stack.inverse_groups_from_app
    groups: dict[int, Any] = {}  # by the identity of an application, which has no hash and stays

    def found_groups(app: Any) -> Any:
        if id(app) not in groups:
            groups[id(app)] = (app, find_groups(app))
        return groups[id(app)][1]

    stack.inverse_groups_from_app = found_groups
    options_of: Any = importlib.import_module("cyclopts.argument._argument")
    # Pydantic would check every value once more. It does so only where it is loaded, and no command loads it before its
    # words are read: tests of the service have done so here.
    options_of.sys = SimpleNamespace(modules={})
    find_type = options_of.Argument._negatives_hint.fget
    types: dict[int, Any] = {}  # by the identity of a field of a signature, which has no hash and stays

    def found_type(option: Any) -> Any:
        field = option.field_info
        if id(field) not in types:
            types[id(field)] = (field, find_type(option))
        return types[id(field)][1]

    options_of.Argument._negatives_hint = property(found_type)
