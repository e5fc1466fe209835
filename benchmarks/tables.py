"""The tables that favorbench and slower programs compute."""

from favorbench.engine.plan import Draw, plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study

SIZES = ",".join(str(r) for r in range(16, 193, 16))
#: The blog post's two experiments: trig with both samplers at scale 1, trig and positive with orthogonal rows at 1.5.
EXPERIMENTS = (
    {"maps": "trig", "samplers": "iid,orthogonal", "scale": "1.0", "value_scale": 1.0},
    {"maps": "trig,positive", "samplers": "orthogonal", "scale": "1.5", "value_scale": 1.5},
)
#: The table that a user's own loop would make.
TABLE = ({"maps": "positive,trig", "samplers": "iid,orthogonal"},)

Made = tuple[Study, list[Draw]]


def studies(trials: int, experiments: tuple[dict, ...]) -> list[Made]:
    """Each experiment with its draws."""
    common = {"num_projections": SIZES, "seq_len": "1024", "head_dim": "16", "trials": trials, "baselines": "uniform"}
    built = [Study.of(load_scenario("quick", common | experiment)) for experiment in experiments]
    return [(study, list(plan(study))) for study in built]
