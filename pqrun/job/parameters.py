"""The payload of a handler without a model: its parameters after ``ctx``, one key each."""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast

import msgspec
from pydantic import TypeAdapter

from pqrun.errors import DeclarationError
from pqrun.job.annotation import pydantic_form, typed_dict
from pqrun.job.constructor import Arguments, Construct, call_problems, dropped_keys
from pqrun.job.fields import PayloadField, pydantic_shape
from pqrun.job.payload import PayloadCodec
from pqrun.job.reasons import Refusal, explain
from pqrun.job.record import JsonObject
from pqrun.job.schema import pydantic_schema_of, with_defaults
from pqrun.job.shape import Shape, pydantic_shape_of
from pqrun.job.wire import Wire, pydantic_adapter, pydantic_wire

__all__ = ["Parameter", "Parameters", "ParametersCodec", "parameters_codec"]

Parameters: TypeAlias = dict[str, object]
"""The arguments of one call by name, defaults included."""

_CONTAINERS: Final = (dict, list, tuple)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a handler after ``ctx``, its annotation resolved."""

    declared: inspect.Parameter
    annotation: object

    @property
    def name(self) -> str:
        """Its name, which is its key in the stored JSON."""
        return self.declared.name

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.declared.default is inspect.Parameter.empty


class ParametersCodec(PayloadCodec[Parameters]):
    """The codec of a payload that is the arguments of a call.

    ``build`` takes the arguments as the handler would; ``load`` fills in the defaults of parameters that the stored
    payload lacks, because it was written before they existed.
    """

    __slots__ = ("_defaults",)

    def __init__(
        self,
        *,
        name: str,
        fields: tuple[PayloadField, ...],
        construct: Construct[Parameters],
        wire: Wire[Parameters],
        shape: Callable[[], Shape | None],
        schema: Callable[[], JsonObject],
        defaults: Parameters,
    ) -> None:
        super().__init__(
            name=name, model=dict, fields=fields, construct=construct, wire=wire, shape=shape, schema=schema
        )
        self._defaults = defaults

    def is_instance(self, value: object) -> bool:
        """Return False: whatever is given is an argument."""
        del value
        return False

    def load(self, text: str) -> Parameters:
        """Return the arguments by name; raises ``PayloadDecodeError`` naming what is missing or not valid."""
        loaded = super().load(text)
        return loaded if len(loaded) == len(self.fields) else self._defaults | loaded


def parameters_codec(name: str, parameters: Sequence[Parameter]) -> ParametersCodec:
    """Make the codec of the parameters of the handler ``name``.

    Raises:
        DeclarationError: naming the parameter whose type cannot be stored.
    """
    adapter = _adapter(name, parameters)
    fields = []
    for field, parameter in zip(pydantic_shape(None, adapter, where=name).fields, parameters, strict=True):
        if field.wire_name != field.name:
            raise DeclarationError(f"{name}: parameter {field.name!r}: an alias needs a model with that field")
        fields.append(msgspec.structs.replace(field, annotation=parameter.annotation))
    defaults: Parameters = {item.name: item.declared.default for item in parameters if not item.is_required}
    declared = tuple(item.declared for item in parameters)
    return ParametersCodec(
        name=name,
        fields=tuple(fields),
        construct=_constructor(declared, defaults, adapter.validator.validate_python),
        wire=cast(Wire[Parameters], pydantic_wire(adapter, by_alias=True)),
        shape=functools.partial(pydantic_shape_of, adapter, by_alias=True),
        schema=lambda: with_defaults(pydantic_schema_of(adapter, by_alias=True), defaults),
        defaults=defaults,
    )


def _adapter(name: str, parameters: Sequence[Parameter]) -> TypeAdapter[object]:
    # A TypedDict takes any name as its key; fields of a model may not be called "json", "copy" or "_x".
    keys: dict[str, object] = {}
    for parameter in parameters:
        form = pydantic_form(parameter.annotation)
        keys[parameter.name] = typing.Required[form] if parameter.is_required else typing.NotRequired[form]
    try:
        return pydantic_adapter(typed_dict(name, keys), where=name)
    except DeclarationError:
        for parameter in parameters:  # the one that is to blame can be named
            pydantic_adapter(pydantic_form(parameter.annotation), where=f"{name}: parameter {parameter.name!r}")
        raise


def _constructor(
    declared: tuple[inspect.Parameter, ...], defaults: Parameters, validate: Callable[[object], object]
) -> Construct[Parameters]:
    """Bind arguments as a call would, without the cost of ``inspect.Signature.bind`` where they fit."""
    signature = inspect.Signature(declared)
    by_position = tuple(item.name for item in declared if item.kind is not inspect.Parameter.KEYWORD_ONLY)
    by_keyword = frozenset(item.name for item in declared if item.kind is not inspect.Parameter.POSITIONAL_ONLY)
    required = frozenset(item.name for item in declared) - defaults.keys()

    def construct(args: Arguments, kwargs: Mapping[str, object]) -> Parameters | Refusal:
        given: Parameters = dict(zip(by_position, args, strict=False))
        fits = len(args) <= len(by_position) and kwargs.keys() <= by_keyword and given.keys().isdisjoint(kwargs)
        given.update(kwargs)
        if not fits or not required <= given.keys():
            return _misfit(signature, args, kwargs)
        given = defaults | given
        try:
            built = cast(Parameters, validate(given))
        except Exception as exc:  # noqa: BLE001  # validators of the user's own may raise anything
            return Refusal(explain(exc))
        if any(isinstance(item, _CONTAINERS) for item in given.values()):
            dropped = tuple(dropped_keys(given, built))
            return Refusal(dropped) if dropped else built
        return built

    return construct


def _misfit(signature: inspect.Signature, args: Arguments, kwargs: Mapping[str, object]) -> Refusal:
    def handler(*args: object, **kwargs: object) -> None:
        signature.bind(*args, **kwargs)

    handler.__signature__ = signature  # type: ignore[attr-defined]  # the protocol of inspect
    return Refusal(call_problems(handler, args, kwargs, TypeError("the arguments do not fit")))
