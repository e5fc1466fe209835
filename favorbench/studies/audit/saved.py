"""An audit as a run: the implementations as methods of a sweep, beside FAVOR+ and the trivial answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from favorbench.engine.scenario import Names, load_scenario, override
from favorbench.engine.study import Study
from favorbench.methods import AttentionProblem, Estimate, Method
from favorbench.numerics.arrays import array_namespace
from favorbench.numerics.streams import Streams
from favorbench.registry import canonical
from favorbench.samplers import get_sampler
from favorbench.studies.audit.subjects import Subject, subject_of

#: Asked for by default; what a run of four heads of L = 512, d = 32 and Gaussians of that shape takes are seconds.
SIZES = (64, 256)
INPUTS = ("gaussian(std=0.5)", "gaussian", "minilm")
BASELINES = ("uniform", "taylor-1", "sampled-keys", "best-rank")


@dataclass(frozen=True)
class Implementation(Method):
    """Somebody's function of (q, k, v), or of (q, k, v, omega) with orthogonal projections; it claims nothing."""

    reference: ClassVar[str] = "audited"
    description: ClassVar[str] = "an implementation that is audited"
    arrays: ClassVar = "host"
    permutation_invariant: ClassVar[bool] = False
    name: str = field(init=False, default="")  # pyright: ignore[reportIncompatibleVariableOverride]
    every_size: bool = field(init=False, default=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    subject: Subject = field(init=False, default=None, repr=False)  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def of(subject: Subject) -> "Implementation":
        """What takes no projections has one answer, whatever the size."""
        made = Implementation()
        for name, value in (("name", subject.name), ("every_size", subject.takes_omega), ("subject", subject)):
            object.__setattr__(made, name, value)
        return made

    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        (rng,), d = streams.generators, problem.query.shape[-1]
        query, key = problem.unscaled()
        xp = array_namespace(query)
        omega = get_sampler("orthogonal").sample(rng, sizes[-1], d)  # nested: a size draws what the others draw
        for size in sizes:
            output, ones = (
                self.subject.output(xp.asarray(query, copy=True), xp.asarray(key, copy=True), value, omega[:size])
                for value in (xp.asarray(problem.value, copy=True), xp.ones_like(problem.value))
            )
            shown, features = (size, size) if self.every_size else (None, 0)
            yield Estimate(shown, features, output, None, ones[..., :1])


def study_of(
    names: Sequence[str],
    runs: int,
    seed: int,
    inputs: str | None = None,
    num_projections: str | None = None,
) -> Study:
    """The sweep that an audit is saved as. What takes no projections has one answer, whatever the size.

    Raises ScenarioError for a name, inputs or sizes that cannot be had.
    """
    given: Mapping[str, Any] = {
        "maps": "positive", "samplers": "orthogonal", "baselines": BASELINES, "inputs": inputs or INPUTS,
        "num_projections": num_projections or SIZES, "trials": runs, "seed": seed,
    }  # fmt: skip
    loaded = load_scenario(None, given if inputs else {**given, "seq_len": 512, "head_dim": 32})
    scenario = override(loaded, name="audit", title=f"audit of {', '.join(names)}")
    largest = max(scenario.sizes(32))
    members = {name: _method(name, largest) for name in names}
    specs = [
        name if isinstance(method, Implementation) else canonical(name, method) for name, method in members.items()
    ]
    return Study.of(scenario.model_copy(update={"methods": Names.of(specs, members.values())}))


def _method(name: str, size: int) -> Method:
    subject = subject_of(name, size)
    return Implementation.of(subject) if subject.method is None else subject.method
