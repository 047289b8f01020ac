"""Checks of arguments, for use in your own methods and oracles; `fedpd.base.checks` defines them."""

from fedpd.base.checks import FedpdError as FedpdError
from fedpd.base.checks import TheoryWarning as TheoryWarning
from fedpd.base.checks import at_least as at_least
from fedpd.base.checks import at_most as at_most
from fedpd.base.checks import below as below
from fedpd.base.checks import choice as choice
from fedpd.base.checks import count as count
from fedpd.base.checks import is_traced as is_traced
from fedpd.base.checks import nearest as nearest
from fedpd.base.checks import positive as positive
from fedpd.base.checks import positive_or_schedule as positive_or_schedule
from fedpd.base.checks import refuse as refuse
from fedpd.base.checks import skip_probability as skip_probability
