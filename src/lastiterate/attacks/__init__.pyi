"""Public names, each with the module it lives in. `__init__.py` loads a module on first use."""

from .adversarial import Adversarial as Adversarial
from .all_iterates import AllIterates as AllIterates
from .attack import NAMED as NAMED
from .attack import Armed as Armed
from .attack import Attack as Attack
from .attack import Expected as Expected
from .attack import NamedAttack as NamedAttack
from .attack import References as References
from .attack import Words as Words
from .attack import named_attack as named_attack
from .displacement import Displacement as Displacement
from .gradient_space import GradientSpace as GradientSpace
from .input_space import InputSpace as InputSpace
from .one_run import OneRun as OneRun
