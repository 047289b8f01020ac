"""Find out whether a later broadcast replaces all that an earlier one leaves at an agent.

A client that replied to communication n and was not asked since has not yet received outcome n. When the server asks it
again, it calls `receive` with outcome n and then `absent` with the newest one. The server would have to keep outcome n
for it, and to send two broadcasts. In FedPD, FedAvg, SCAFFOLD and most other methods, the result does not depend on
outcome n. The traced program shows this, whatever the numbers are.
"""

import jax
from jax.extend.core import Literal, Var

from fedpd.core import Method, Tree
from fedpd.flower.method.shapes import Shapes


def is_superseded(algorithm: Method, shapes: Shapes) -> bool:
    """Return whether `absent(receive(agent, earlier), newest)` is the same for all `earlier`.

    It returns False for a method with several exchanges per round, and where the program does not show it.
    """
    if len(algorithm.exchanges()) > 1:
        return False
    exchange, broadcast = algorithm.exchanges()[0], shapes.broadcasts[0]
    missed = exchange.missed or exchange.receive

    def both(earlier: Tree, agent: Tree, newest: Tree) -> Tree:
        return missed(exchange.receive(agent, earlier), newest)

    program = jax.make_jaxpr(both)(broadcast, shapes.agent, broadcast).jaxpr
    needed = _variables(program.outvars)
    for equation in reversed(program.eqns):
        if needed & _variables(equation.outvars):
            needed |= _variables(equation.invars)
    return needed.isdisjoint(program.invars[: len(jax.tree.leaves(broadcast))])


def _variables(atoms: list[Var | Literal]) -> set[Var]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}
