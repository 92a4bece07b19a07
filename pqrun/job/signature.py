"""What a handler's signature says: whether it is async, what its payload is, what it returns.

The wire rule: exactly one parameter after ``ctx``, without default, annotated with a model class, is stored as its own
object; otherwise the stored object has one key per parameter.
"""

import contextlib
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

import msgspec
from typing_extensions import is_typeddict

from pqrun.errors import DeclarationError
from pqrun.job.annotation import is_model_class, plain_class, type_name
from pqrun.job.parameters import Parameter, parameters_codec
from pqrun.job.payload import PayloadCodec, payload_codec

__all__ = ["Handler", "Signature", "read_signature"]

Handler: TypeAlias = Callable[..., object]

_EMPTY: Final = inspect.Parameter.empty


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """A handler's signature, read once when it is declared."""

    name: str
    """The function's name."""
    is_async: bool
    codec: PayloadCodec[object]
    """Of the model, or of the parameters (``dict[str, object]``)."""
    model_parameter: str | None
    """The parameter that takes the model; None where the parameters are the payload."""
    by_position: tuple[str, ...]
    """The parameters after ``ctx`` that are given by position; the others by keyword."""
    returns: object
    """The resolved annotation of the result; ``inspect.Signature.empty`` where there is none."""

    @property
    def takes_model_alone(self) -> bool:
        """Whether a call with ``ctx`` and the model, both by position, is all it takes."""
        return self.model_parameter is not None and self.by_position == (self.model_parameter,)

    def arguments(self, payload: object) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the positional and keyword arguments after ``ctx`` for a call with what the codec has loaded."""
        keywords = {self.model_parameter: payload} if self.model_parameter is not None else payload
        if not self.by_position:
            return (), cast(dict[str, object], keywords)
        rest = dict(cast(dict[str, object], keywords))
        return tuple(rest.pop(name) for name in self.by_position), rest


def read_signature(function: Handler, *, payload: object = None, context: type | None = None) -> Signature:
    """Read a handler's signature.

    Args:
        function: the handler, async or plain.
        payload: the model of the ``payload=`` form; the one parameter after ``ctx`` need not be annotated then.
        context: the class that the first parameter's annotation, if it has one, must name.

    Raises:
        DeclarationError: naming the function and the parameter that cannot be.
    """
    _refuse_what_cannot_run(function)
    where = f"{function.__qualname__.rpartition('<locals>.')[2]}()"
    declared = inspect.signature(function)
    parameters = list(declared.parameters.values())
    _check_context(function, where, parameters, context)
    after = parameters[1:]
    for parameter in after:
        if parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise DeclarationError(f"{where}: {parameter}: the parameters of a payload must be named one by one")
    if payload is not None:
        _check_payload_parameter(function, where, after, payload)
    model = payload if payload is not None else _sole_model(function, where, after)
    codec: PayloadCodec[object]
    if model is not None:
        codec = payload_codec(cast("type[object]", model), where=where)
        by_position = tuple(item.name for item in after if item.kind is not inspect.Parameter.KEYWORD_ONLY)
    else:
        resolved = [Parameter(declared=item, annotation=_annotation_of(function, where, item)) for item in after]
        codec = cast("PayloadCodec[object]", parameters_codec(where, resolved))
        by_position = tuple(item.name for item in after if item.kind is inspect.Parameter.POSITIONAL_ONLY)
    return Signature(
        name=function.__name__,
        is_async=inspect.iscoroutinefunction(function),
        codec=codec,
        model_parameter=None if model is None else after[0].name,
        by_position=by_position,
        returns=_resolved(function, f"{where}: the annotation of its result", declared.return_annotation),
    )


def _refuse_what_cannot_run(function: object) -> None:
    if not isinstance(function, types.FunctionType | types.MethodType):
        raise DeclarationError(f"a handler is a function, async or plain; got {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(f"{function.__qualname__}(): a handler returns its result; this one yields")


def _check_context(
    function: Handler, where: str, parameters: Sequence[inspect.Parameter], context: type | None
) -> None:
    advice = "the first parameter of a handler is ctx: JobContext"
    if not parameters or parameters[0].kind not in {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    }:
        raise DeclarationError(f"{where}: {advice}")
    if context is None or parameters[0].annotation is _EMPTY:
        return
    try:
        annotation = _resolved(function, where, parameters[0].annotation)
    except DeclarationError:  # imported for type checkers only: its name is all there is, and they have judged it
        return
    named = plain_class(annotation)
    if named is not None and not _may_take(named, context):
        raise DeclarationError(f"{where}: {advice}, not {parameters[0].name}: {type_name(annotation)}")


def _check_payload_parameter(
    function: Handler, where: str, after: Sequence[inspect.Parameter], payload: object
) -> None:
    if len(after) != 1:
        raise DeclarationError(
            f"{where}: with payload={type_name(payload)} a handler has two parameters, ctx and payload; "
            f"this one has {len(after) + 1}"
        )
    if after[0].annotation is _EMPTY:
        return
    annotation = _annotation_of(function, where, after[0])
    named, given = plain_class(annotation), plain_class(payload)
    if named is not None and given is not None and not _may_take(named, given):
        raise DeclarationError(
            f"{where}: payload={type_name(payload)}, but parameter {after[0].name!r} takes {type_name(annotation)}"
        )


def _may_take(named: type, given: type) -> bool:
    """Whether a parameter annotated with one class may take instances of another, as far as that can be asked."""
    if is_typeddict(named):
        return is_typeddict(given)
    try:
        return issubclass(given, named)
    except TypeError:  # a protocol that only checkers understand
        return True


def _sole_model(function: Handler, where: str, after: Sequence[inspect.Parameter]) -> object | None:
    if len(after) != 1 or after[0].default is not _EMPTY:
        return None
    annotation = _annotation_of(function, where, after[0])
    return annotation if is_model_class(annotation) else None


def _annotation_of(function: Handler, where: str, parameter: inspect.Parameter) -> object:
    if parameter.annotation is _EMPTY:
        raise DeclarationError(
            f"{where}: parameter {parameter.name!r} has no annotation; it says what is stored and what defer accepts"
        )
    return _resolved(function, f"{where}: the annotation of parameter {parameter.name!r}", parameter.annotation)


def _closed_over(function: object) -> dict[str, object]:
    """Return what the function's closure holds by now: the name of a task that defers itself is bound after its declaration."""
    code = getattr(function, "__code__", None)
    found: dict[str, object] = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=True):
        with contextlib.suppress(ValueError):  # the cell is empty
            found[name] = cell.cell_contents
    return found


def _resolved(function: Handler, where: str, annotation: object) -> object:
    """Resolve an annotation that is text, or has text inside, in the names that the function sees."""
    if annotation is _EMPTY:
        return annotation
    plain = inspect.unwrap(function)
    names = getattr(plain, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = typing.get_type_hints(holder, globalns=names, localns=_closed_over(plain), include_extras=True)
    except Exception as exc:
        raise DeclarationError(
            f"{where} cannot be resolved ({type(exc).__name__}: {exc}); "
            "names in annotations must be importable or defined at the top of the module"
        ) from exc
    resolved: object = hints["it"]
    return resolved
