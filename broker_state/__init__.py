"""The domain of popstream: the rules of operations, and the state that they change. Pure except for `rocks_store`.

Attributes:
    KERNEL_FORM: `compiled` or `pure` (`broker_state.compiled_form`).
"""

from broker_state.compiled_form import choose_form

__all__ = ["KERNEL_FORM"]

KERNEL_FORM = choose_form(__path__)
