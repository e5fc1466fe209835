"""One attention call of a model, and who is listening to its calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from favorbench.errors import ModelError
from favorbench.models.masks import Kind, kind_of


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call: softmax(scaling q k^T + mask) v is due, unless ``extra`` says otherwise.

    query (B, H, n, d), key (B, H, l, d), value (B, H, l, d_v), groups of heads repeated, rotary positions applied.
    module: whose call it is, and its name, dotted as in named_modules; of the model itself its class. index: its number
    among the calls of one forward pass, from 0. mask: (B or 1, H or 1, n, l), added to the logits, or None. kind: what
    the mask is. extra: other keywords that may change the mathematics (soft caps, sinks, position biases). own:
    computes what the model's own function gives, (B, H, n, d_v).
    """

    module: Any
    name: str
    index: int
    query: Any
    key: Any
    value: Any
    mask: Any
    kind: Kind
    scaling: float
    extra: dict[str, Any]
    own: Callable[[], Any]


#: A call's answer, (B, H, n, d_v).
Attend = Callable[[Call], Any]


@dataclass
class Listener:
    """Who is listening to which model: its modules' names, what its functions were, and where the pass under way is."""

    attend: Attend
    names: dict[Any, str]
    before: dict[int, tuple[Any, str | None]]
    stack: list[Any] = field(default_factory=list)
    calls: int = 0
    index: int = 0
    answering: bool = False
    kinds: list[tuple[Any, Kind]] = field(default_factory=list)

    def answer(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **rest: Any) -> Any:
        """What the listener makes of a call."""
        name = self.names.get(module) or type(module).__name__
        call = Call(
            module, name, self.index, query, *_repeated(query, key, value), mask,
            self.kind(mask, (query.shape[-2], key.shape[-2])), **rest,
        )  # fmt: skip
        self.calls, self.index, self.answering = self.calls + 1, self.index + 1, True
        try:
            output = self.attend(call)
        finally:
            self.answering = False
        wanted = (*query.shape[:-1], value.shape[-1])
        if tuple(output.shape) != wanted:
            raise ModelError(f"{call.name}: the attention given returned shape {tuple(output.shape)}, not {wanted}")
        return output.to(query.dtype)

    def kind(self, mask: Any, shape: tuple[int, int]) -> Kind:
        """The kind of a mask, found once where calls share it. It is kept meanwhile: another could get its address."""
        place = _place(mask)
        for known, kind in self.kinds:
            if mask is not None and _place(known) == place:
                return kind
        kind = kind_of(mask, shape)
        if mask is not None:
            self.kinds = [(mask, kind), *self.kinds[:1]]
        return kind

    def enter(self, module: Any, *_: Any) -> None:
        """Before a module's forward; the outermost begins a pass."""
        if not self.stack:
            self.index, self.kinds = 0, []
        self.stack.append(module)

    def leave(self, *_: Any) -> None:
        """After it, also when it failed."""
        self.stack.pop()


def _repeated(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """Key and value heads, each repeated for the queries of its group."""
    if query.shape[1] % key.shape[1]:
        raise ModelError(f"{query.shape[1]} heads of queries do not divide into {key.shape[1]} of keys")
    times = query.shape[1] // key.shape[1]
    return (key, value) if times == 1 else (key.repeat_interleave(times, 1), value.repeat_interleave(times, 1))


def _place(mask: Any) -> tuple[Any, ...] | None:
    """What tells whether two tensors are the same numbers in the same memory."""
    return None if mask is None else (mask.data_ptr(), tuple(mask.shape), mask.stride(), mask.dtype, mask._version)
