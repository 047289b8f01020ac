"""The privacy of a run: who takes part decides how much noise each agent adds, and how epsilon is counted."""

from fedpd.base.checks import refuse
from fedpd.base.warn import warn
from fedpd.core import Method, message_kinds
from fedpd.engine.backends.cohort import shapes_of
from fedpd.engine.backends.liveness import liveness_of
from fedpd.engine.plan import Plan, prepare
from fedpd.transforms._accountant import Accountant, noise_for
from fedpd.transforms._private import Gaussian, with_noise
from fedpd.transforms._wrap import private_parts


def with_privacy(plan: Plan) -> Plan:
    """Return the plan with the noise of a private method and its accountant; other plans are returned as they are.

    Raises:
        FedpdError: The number of agents that send in a round is not the same in all rounds.
    """
    parts = private_parts(plan.algorithm)
    if parts is None:
        return plan
    method, rule = parts
    agents, number = plan.problem.agents, senders(plan)
    warn_of_delta(rule.delta, agents, "agent", "1/N")
    if rule.agents not in (None, number):
        refuse("agents", rule.agents, f"must be {number}, the agents that send in a round", "Leave agents out")
    known = (
        plan.algorithm
        if complete(rule)
        else with_noise(method, with_numbers(rule, number, rule.noise_multiplier or 1.0))
    )
    cohort = None if number == agents or keeps_state(plan._replace(algorithm=known)) else number
    vectors = number_of_vectors(known)
    if rule.noise_multiplier is None:
        assert rule.epsilon is not None  # `gaussian`
        noise = vectors**0.5 * noise_for(rule.epsilon, plan.rounds, rule.delta, agents, cohort)
        known = with_noise(method, with_numbers(rule, number, noise))
    else:
        noise = rule.noise_multiplier
    return plan._replace(algorithm=known, privacy=Accountant(noise / vectors**0.5, rule.delta, agents, cohort))


def warn_of_delta(delta: float, number: int, what: str, bound: str) -> None:
    """Warn of a delta so large that the guarantee allows to reveal all data of one of `number` agents or samples."""
    if delta >= 1 / number:
        warn(
            f"delta = {delta:g} is not below {bound} = {1 / number:.3g}. A mechanism that reveals one {what} of "
            f"{number} at random has this privacy, so epsilon says little. Give a smaller delta."
        )


def complete(rule: Gaussian) -> bool:
    """Return whether the numbers of a rule are all known."""
    return rule.agents is not None and rule.noise_multiplier is not None


def with_numbers(rule: Gaussian, number: int, noise_multiplier: float) -> Gaussian:
    """Return the rule for this many agents per round, with this noise."""
    known = {"noise_multiplier": noise_multiplier, "agents": number, "epsilon": None}
    return rule.changed(known)


def number_of_vectors(algorithm: Method) -> int:
    """Return how many vectors a message has; each is clipped and each counts."""
    parts = private_parts(algorithm)
    assert parts is not None
    return len(message_kinds(parts[0].partial())[0])


def senders(plan: Plan) -> int:
    """Return how many agents send in a round; refuse a run in which this number changes or depends on the data."""
    rule = plan.participation
    if rule is None:
        return plan.problem.agents
    if rule.kind != "cohort":
        text = "needs the same number of agents in every round, drawn uniformly"
        refuse("participation", rule.kind, f"{text}, because each adds its share of the noise", "Give cohort=K")
    return int(rule.numbers)


def keeps_state(plan: Plan) -> bool:
    """Return whether agents keep anything between rounds. Then the rounds in which an agent took part leave a trace."""
    program, template, inputs = prepare(plan)
    kept = liveness_of(program.functions, shapes_of(template, inputs, False))
    return bool(kept.rows)
