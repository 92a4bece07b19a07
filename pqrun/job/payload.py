"""Payload models: from a constructor's arguments to the JSON text that is stored, and from that text to the model.

Pydantic models, pydantic and standard dataclasses and TypedDicts go through pydantic, Structs through msgspec. All
decisions are taken when the codec is made: reading a payload is one call into compiled code, writing one is a
dump, a reading of that dump, and a comparison.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Generic, NoReturn, TypeVar, cast

import msgspec
import typing_extensions
from pydantic import BaseModel

from pqrun.errors import DeclarationError, PayloadDecodeError, PayloadError
from pqrun.job.annotation import is_model_class, plain_class, pydantic_form, type_name, unwrapped
from pqrun.job.constructor import Arguments, Construct, plain_constructor, strict_constructor
from pqrun.job.fields import PayloadField, accepted_keywords, pydantic_shape, struct_fields
from pqrun.job.reasons import Problems, Refusal
from pqrun.job.record import JsonObject
from pqrun.job.schema import pydantic_schema_of, struct_schema_of
from pqrun.job.shape import Shape, pydantic_shape_of, struct_shape_of
from pqrun.job.wire import Wire, pydantic_adapter, pydantic_wire, struct_wire

__all__ = ["PayloadCodec", "PayloadField", "is_model_class", "payload_codec", "refuse_shape"]

M = TypeVar("M")


class PayloadCodec(Generic[M]):
    """One payload model's way into storage and back; make it with ``payload_codec``."""

    __slots__ = ("_construct", "_instance_of", "_wire", "fields", "model", "name", "schema", "shape")

    def __init__(
        self,
        *,
        name: str,
        model: type[M],
        fields: tuple[PayloadField, ...],
        construct: Construct[M],
        wire: Wire[M],
        shape: Callable[[], Shape | None],
        schema: Callable[[], JsonObject],
    ) -> None:
        self.name = name
        """What messages call the payload."""
        self.model = model
        self.fields = fields
        self.shape = shape
        """Makes the shape of what is stored, anew at each call; None where there is none to be had."""
        self.schema = schema
        """Makes the JSON Schema of what is stored, anew at each call; raises what the model's own code raises."""
        self._construct = construct
        self._wire = wire
        cls = plain_class(model) or object
        self._instance_of: type = Mapping if typing_extensions.is_typeddict(cls) else cls

    def is_instance(self, value: object) -> bool:
        """Whether a value is a payload already, rather than an argument for one (for a TypedDict: any mapping)."""
        return isinstance(value, self._instance_of)

    def build(self, args: Arguments, kwargs: Mapping[str, object]) -> M:
        """Call the model's own constructor.

        Dataclasses and Structs do not check types there; ``dump`` does.

        Raises:
            PayloadError: naming each field that is unknown, missing or not valid.
        """
        value = self._construct(args, kwargs)
        if isinstance(value, Refusal):
            self._refuse(value)
        return value

    def dump(self, value: M) -> str:
        """Return the JSON text of the object to store: one that reads back as this value.

        Raises:
            PayloadError: naming each field that is not valid, cannot be stored, or would come back different.
        """
        text = self._wire.dump(value)
        if isinstance(text, Refusal):
            self._refuse(text)
        return text

    def load(self, text: str) -> M:
        """Return the payload of a stored text; fields that the model does not know are left out, if it allows that.

        Raises:
            PayloadDecodeError: naming each field that is missing or not valid.
        """
        value = self._wire.load(text)
        if isinstance(value, Refusal):
            raise PayloadDecodeError(f"the stored payload does not satisfy {self.name}: {value}", value.problems)
        return value

    def problems(self, text: str) -> Problems:
        """Return what stands against reading a text, as pairs of path and reason; nothing where ``load`` takes it."""
        value = self._wire.load(text)
        return value.problems if isinstance(value, Refusal) else ()

    def _refuse(self, refusal: Refusal) -> NoReturn:
        raise PayloadError(f"{self.name}: {refusal}", refusal.problems)


def payload_codec(model: type[M], *, where: str = "") -> PayloadCodec[M]:
    """Make the codec of a payload model; ``where`` names the handler in messages, if there is one.

    Raises:
        DeclarationError: not a model, one that is stored as something else than an object, or one whose fields cannot
            be resolved or read back.
    """
    name = type_name(model)
    where = f"{where}: {name}" if where else name
    if not is_model_class(model):
        raise DeclarationError(
            f"{where}: a payload is a pydantic model, a dataclass, a msgspec Struct or a TypedDict; "
            "without payload=, the parameters after ctx are the payload"
        )
    refuse_shape(model, where=where)
    cls = cast(type, plain_class(model))
    if issubclass(cls, msgspec.Struct):
        wire = cast(Wire[M], struct_wire(model, where=where))
        construct = plain_constructor(cast(Callable[..., M], unwrapped(model)))
        return PayloadCodec(
            name=name,
            model=model,
            fields=struct_fields(model),
            construct=construct,
            wire=wire,
            shape=functools.partial(struct_shape_of, model),
            schema=functools.partial(struct_schema_of, model),
        )
    adapter = pydantic_adapter(pydantic_form(model), where=where)
    shape = pydantic_shape(model, adapter, where=where)
    return PayloadCodec(
        name=name,
        model=model,
        fields=shape.fields,
        construct=_pydantic_constructor(model, cls),
        wire=cast(Wire[M], pydantic_wire(adapter, by_alias=shape.by_alias)),
        shape=functools.partial(pydantic_shape_of, adapter, by_alias=shape.by_alias),
        schema=functools.partial(pydantic_schema_of, adapter, by_alias=shape.by_alias),
    )


def refuse_shape(model: object, *, where: str) -> None:
    """Refuse a model that is stored as something else than a JSON object, with ``DeclarationError``."""
    cls = plain_class(model)
    if cls is None:
        return
    if getattr(cls, "__pydantic_root_model__", False):  # as pydantic itself asks; RootModel takes a while to import
        raise DeclarationError(f"{where}: a RootModel is not stored as an object; give it a field in a model")
    if issubclass(cls, msgspec.Struct) and cls.__struct_config__.array_like:
        raise DeclarationError(f"{where}: an array_like Struct is not stored as an object")
    decorators = getattr(cls, "__pydantic_decorators__", None)
    if decorators is None or not decorators.model_serializers:
        return
    kind = pydantic_adapter(model, where=where).json_schema(mode="serialization").get("type", "object")
    if kind != "object":
        raise DeclarationError(f"{where}: its model_serializer makes {kind!r} of it, not an object")


def _pydantic_constructor(model: type[M], cls: type) -> Construct[M]:
    make = cast(Callable[..., M], unwrapped(model))
    if not issubclass(cls, BaseModel) and not hasattr(cls, "__pydantic_validator__"):
        return plain_constructor(make)  # standard dataclasses refuse, and dict takes anything
    accepted = accepted_keywords(cls)
    if accepted is None:
        return strict_constructor(make, None)
    return strict_constructor(make, frozenset(accepted) | _own_parameters(cls))


def _own_parameters(cls: type) -> frozenset[str]:
    """Return the keywords of a constructor that a model's author wrote."""
    init = cls.__dict__.get("__init__") or getattr(cls, "__init__", None)
    code = getattr(init, "__code__", None)
    if code is None or getattr(init, "__module__", "").startswith("pydantic."):
        return frozenset()
    return frozenset(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
