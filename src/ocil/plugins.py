"""Methods, networks, datasets and measures that come from outside: from packages, and from single files.

A package lists them among its entry points. The groups are ``ocil.methods``, ``ocil.networks``, ``ocil.datasets`` and
``ocil.measures``. A file calls ``ocil.register`` when it is loaded: with ``load``, ``--plugin FILE.py`` or the variable
``OCIL_PLUGINS``. Nothing of either is imported before a name is asked for that is not known, or a listing is made.

A plugin that cannot be loaded is left out, with one line on standard error; the others are not affected.

Examples:
    >>> from pathlib import Path
    >>> lines = 'import ocil; ocil.register(ocil.MethodInfo("other", ocil.METHODS["er"].load(), "like er", "-"))'
    >>> _ = Path("mine.py").write_text(lines)
    >>> _ = ocil.plugins.load(Path("mine.py"))
    >>> "other" in ocil.METHODS
    True
"""

import hashlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast

from ocil.errors import OcilError, UnknownNameError
from ocil.files import read_regular
from ocil.text import escaped

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

VARIABLE = "OCIL_PLUGINS"
"""The variable of the environment that names plugin files, separated as in ``PATH``."""
MOST_BYTES = 1 << 22  # of a plugin file
NAME = re.compile("[a-z0-9]+([-_][a-z0-9]+)*")
PLAIN = re.compile(r"[\w-]+")  # what a plugin may have under some spelling; not a path


@dataclass(frozen=True)
class Origin:
    """Where something with a name comes from."""

    kind: Literal["package", "file", "program"]
    name: str
    """The name of the package; the file's name without its folder."""
    version: str = ""
    """Of a package."""
    digest: str = ""
    """Of a file's content."""
    path: str = ""
    """Of a file."""

    def __str__(self) -> str:
        return {"package": f"the package {self.name}", "file": self.path, "program": "this program"}[self.kind]

    def to_json(self) -> dict[str, str]:
        """What a result records: package and version, or name and digest of the file."""
        last = {"version": self.version} if self.kind == "package" else {"digest": self.digest}
        return {self.kind: self.name, **last}


OURS = Origin("package", "ocil")
PROGRAM = Origin("program", "")
_origin: ContextVar[Origin] = ContextVar("_origin", default=PROGRAM)  # of what is being registered
_lock = threading.RLock()  # one thread at a time loads plugins


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def spelling(name: str) -> str:
    """One spelling for names that differ in case and in ``_`` for ``-``."""
    return name.strip().lower().replace("_", "-")


class Registry(MutableMapping[str, T]):
    """Things by name: our own, those that a program registers, and those of plugins.

    A name that is not known is asked of the plugins; a listing (``for name in registry``) loads all of them. ``kind``
    is the word for one thing in messages. ``read`` makes things from the name and the object of an entry point; it
    raises ``TypeError`` for an object of the wrong kind. ``spelling`` maps all ways to write a name to one.
    """

    instances: ClassVar["list[Registry[Any]]"] = []
    """The registries of this process."""

    def __init__(
        self,
        kind: str,
        group: str,
        ours: Iterable[T],
        read: Callable[[str, Any], Iterable[T]],
        spelling: Callable[[str], str] = str,
    ) -> None:
        self.kind, self.group, self.read, self.spelling = kind, group, read, spelling
        self._things: dict[str, T] = {thing.name: thing for thing in ours}
        self._origins = dict.fromkeys(self._things, OURS)
        self._waiting: list[EntryPoint] | None = None  # entry points that were not loaded yet; None: not looked up
        self._broken: dict[str, str] = {}  # entry points that cannot be loaded, by name, and why
        Registry.instances.append(self)

    def register(self, thing: T, replace: bool = False) -> None:
        """Add a thing. Its name must be free, unless ``replace`` is given or a file is loaded again after a change."""
        name, origin = thing.name, _origin.get()
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise OcilError(
                f"a {self.kind}'s name has small letters and digits, and '-' or '_' between them, not {name!r}."
            )
        owner = self._origins.get(name, origin)
        again = origin.path != "" and owner.path == origin.path and owner is not origin  # each load has its own
        if self._things.get(name, thing) != thing and not replace and not again:
            other = "" if owner == origin else f", from {owner}; {origin} has one too"
            raise OcilError(
                f"there is a {self.kind} '{name}' already{other}: choose another name, or give replace=True."
            )
        self._things[name], self._origins[name] = thing, origin

    def origin(self, name: str) -> Origin:
        return self._origins.get(name, PROGRAM)

    def find(self, name: str) -> T | None:
        """The thing of this name in any spelling, or None."""
        wanted = self.spelling(name)

        def known() -> T | None:
            things = tuple(self._things.items())  # at once: another thread may register something
            alike = (thing for key, thing in things if self.spelling(key) == wanted)
            return self._things.get(wanted) or next(alike, None)

        return self._search(name, known)

    def unknown(self, name: str, *others: str) -> OcilError:
        """The error for a name that nothing has. It names the broken plugins that may have it.

        ``others`` are other forms of names, to suggest.
        """
        wanted = self.spelling(name)
        missing = [why for key, why in self._broken.items() if self.spelling(key) == wanted]
        if missing:
            return OcilError(f"the {self.kind} '{name}' cannot be loaded: {missing[0]}")
        if name.endswith(".py"):
            return OcilError(f"'{name}' is a file: give it as --plugin {name}, and the {self.kind} by its name.")
        maybe = "".join(f" A plugin that may have it is broken: {why}" for why in _files.broken.values())
        return UnknownNameError(f"unknown {self.kind} '{name}'.{maybe}", name, [*self, *others])

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """What is registered inside the block is forgotten after it."""
        restore = self._snapshot()
        try:
            yield
        finally:
            restore()

    def _snapshot(self) -> Callable[[], None]:
        """The function that brings back what is registered now."""
        waiting = None if self._waiting is None else self._waiting.copy()
        before = dict(self._things), dict(self._origins), waiting, dict(self._broken)

        def restore() -> None:
            self._things, self._origins, self._waiting, self._broken = before

        return restore

    def _search(self, name: str, known: Callable[[], T | None]) -> T | None:
        """What ``known`` returns, before or after plugins are loaded. Those that seem to have the name come first."""
        if (thing := known()) is not None or not PLAIN.fullmatch(name.strip()):
            return thing
        for load_some in (partial(self._load_like, name), load_named, self._load_all):
            load_some()
            if (thing := known()) is not None:
                return thing
        return None

    def _load_like(self, name: str) -> None:
        with _lock:
            for point in self._entry_points().copy():
                if self.spelling(point.name) == self.spelling(name):
                    self._load(point)

    def _load_all(self) -> None:
        load_named()
        with _lock:
            while waiting := self._entry_points():
                self._load(waiting[0])

    def _entry_points(self) -> "list[EntryPoint]":
        """Those that were not loaded yet, in an order that does not depend on the machine."""
        if self._waiting is None:
            found = _installed(tuple(sys.path)).select(group=self.group)
            self._waiting = sorted(found, key=lambda point: (_package_of(point).name, point.name))
        return self._waiting

    def _load(self, point: "EntryPoint") -> None:
        self._entry_points().remove(point)
        origin = _package_of(point)
        try:
            with _registering(origin):
                for thing in self.read(point.name, point.load()):
                    self.register(thing)
        except (Exception, SystemExit) as error:
            why = f"{origin}, entry point '{point.name}' of {self.group}: {_reason(error)}"
            self._broken[point.name] = why
            warn_once(why)

    def __getitem__(self, name: str) -> T:
        if (thing := self._search(name, lambda: self._things.get(name))) is None:
            raise KeyError(name)
        return thing

    def __setitem__(self, name: str, thing: T) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __iter__(self) -> Iterator[str]:
        self._load_all()
        return iter(tuple(self._things))

    def __len__(self) -> int:
        self._load_all()
        return len(self._things)


@dataclass(frozen=True)
class PluginFile:
    """A plugin file as it was when it was read. Worker processes get it with their runs, so all run the same code."""

    path: str
    source: bytes

    @classmethod
    def read(cls, path: Path | str) -> "PluginFile":
        if not isinstance(path, str | os.PathLike):
            raise OcilError(f"a plugin is given by the path of its file, not by a {type(path).__name__}.")
        place = Path(path).expanduser()
        try:
            resolved = place.resolve()
            return cls(str(resolved), read_regular(resolved, MOST_BYTES))
        except OSError as error:
            raise OcilError(f"cannot read the plugin {place}: {error.strerror}. Give a Python file.") from None

    @property
    def digest(self) -> str:
        """Of the content, with whatever line ends."""
        return hashlib.sha256(self.source.replace(b"\r\n", b"\n")).hexdigest()[:12]

    @property
    def origin(self) -> Origin:
        return Origin("file", Path(self.path).name, digest=self.digest, path=self.path)

    @property
    def module(self) -> str:
        """The name of its module: the same in all processes, another one after the file was changed."""
        return f"ocil_plugin_{re.sub(r'[^0-9a-zA-Z]', '_', Path(self.path).stem)}_{self.digest}"


@dataclass
class PluginFiles:
    """The plugin files that this process has met."""

    loaded: dict[str, PluginFile] = field(default_factory=dict)
    """By path."""
    broken: dict[str, str] = field(default_factory=dict)
    """Why those that cannot be loaded are left out, by path."""
    warnings: set[str] = field(default_factory=set)
    """What was said on standard error."""

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """What is met inside the block is forgotten after it."""
        before = dict(self.loaded), dict(self.broken), set(self.warnings)
        try:
            yield
        finally:
            self.loaded, self.broken, self.warnings = before


_files = PluginFiles()


def load(path: Path | str) -> ModuleType:
    """Load a plugin file, which registers what it has with ``ocil.register``. Returns its module.

    A file that was loaded before is loaded again only if it has changed; its names are then replaced. Raises
    ``OcilError`` if the file cannot be loaded; nothing of it is registered then.
    """
    return _load_file(PluginFile.read(path))


def load_or_warn(path: Path | str) -> None:
    """``load``, except that a file with a mistake is left out with a line on standard error.

    A file that is not there is an error all the same: its name is probably mistyped.
    """
    file = PluginFile.read(path)
    with _left_out_if_broken(file.path):
        _load_file(file)


def load_named() -> None:
    """Load the files that the variable ``OCIL_PLUGINS`` names, each once."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        path = str(Path(name).expanduser().resolve())
        if path in _files.loaded or path in _files.broken:
            continue
        with _left_out_if_broken(path):
            load(path)


@contextmanager
def _left_out_if_broken(path: str) -> Iterator[None]:
    """A file that cannot be loaded in this block is remembered, and said to be left out."""
    try:
        yield
    except OcilError as error:
        _files.broken[path] = str(error)
        warn_once(str(error))


def loaded() -> tuple[PluginFile, ...]:
    """The plugin files of this process, for other processes to ``install``."""
    return tuple(_files.loaded.values())


@contextmanager
def preserved() -> Iterator[None]:
    """What is loaded or registered inside the block, from whatever plugin, is forgotten after it."""
    with ExitStack() as stack:
        stack.enter_context(_files.preserved())
        for registry in Registry.instances:
            stack.enter_context(registry.preserved())
        yield


def install(files: Iterable[PluginFile]) -> None:
    """Load what ``loaded`` returned in another process, from the content that was read there."""
    for file in files:
        _load_file(file)


def _load_file(file: PluginFile) -> ModuleType:
    with _lock:
        if file.path in _files.loaded and _files.loaded[file.path].source == file.source:
            return sys.modules[file.module]
        module = ModuleType(file.module)
        module.__file__ = file.path
        undo = [registry._snapshot() for registry in Registry.instances]
        sys.modules[file.module] = module  # dataclasses and pickle look for it there
        try:
            with _registering(file.origin):
                exec(compile(file.source, file.path, "exec"), module.__dict__)  # noqa: S102  # the user named the file
        except BaseException as error:
            del sys.modules[file.module]
            for restore in undo:
                restore()
            if not isinstance(error, Exception | SystemExit):
                raise
            lines = [place.lineno for place in traceback.extract_tb(error.__traceback__) if place.filename == file.path]
            where = f" (line {lines[-1]})" if lines else ""  # a SyntaxError has its line in its text
            reason = f"{_reason(error)}{_about_neighbour(error, file)}"
            raise OcilError(f"the plugin {file.path} cannot be loaded{where}: {reason}") from error
        _files.loaded[file.path] = file
        _files.broken.pop(file.path, None)
        return module


@contextmanager
def _registering(origin: Origin) -> Iterator[None]:
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


@cache
def _installed(path: tuple[str, ...]) -> "EntryPoints":
    """The entry points of all packages. To read them takes a moment where there are many packages, so all registries
    share them, until ``path`` (Python's) is another one.
    """
    from importlib.metadata import entry_points

    return cast("EntryPoints", entry_points())  # before Python 3.12 it is of another class, which selects alike


def _package_of(point: "EntryPoint") -> Origin:
    if point.dist is None:
        return Origin("package", point.value.partition(":")[0].partition(".")[0])
    return Origin("package", point.dist.name, point.dist.version)


def package_origin(name: str) -> Origin:
    """The origin of a module: a plugin file, or a package, with the version of its distribution where that is known."""
    file = next((file for file in _files.loaded.values() if file.module == name), None)
    return _package(name) if file is None else file.origin


@cache
def _package(name: str) -> Origin:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Origin("package", name, version(name))
    except PackageNotFoundError:
        return Origin("package", name)


def _reason(error: BaseException) -> str:
    """Why a plugin cannot be loaded, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OcilError):
        return text
    return f"{type(error).__name__}: {text}"[:300].rstrip(".: ") + "."


def _about_neighbour(error: BaseException, file: PluginFile) -> str:
    """What to do if a plugin file imports a file that lies next to it, which other processes would not have."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    folder = Path(file.path).parent
    if not name or not ((folder / f"{name}.py").exists() or (folder / name).is_dir()):
        return ""
    return " A plugin file cannot import what lies next to it: put all into one file, or install a package."


def warn_once(text: str) -> None:
    """Say on standard error, once, that something of a plugin is left out."""
    from multiprocessing import parent_process

    if text not in _files.warnings and parent_process() is None:  # else the process that started this one has said it
        _files.warnings.add(text)
        print(f"ocil: warning: left out: {escaped(text)}", file=sys.stderr)
