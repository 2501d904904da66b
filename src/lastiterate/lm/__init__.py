"""Private fine-tuning of Hugging Face causal language models, and audits with canaries of unseen tokens."""

from lastiterate.common.errors import MissingExtra, not_installed

try:
    import safetensors as _safetensors  # noqa: F401
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise MissingExtra(not_installed("training of language models", error.name, "lm")) from error

from lastiterate.lm import lm_experiment as _experiment  # noqa: F401 - registers the experiment for texts
from lastiterate.lm.fine_tuning import second_moment
from lastiterate.lm.one_run_tokens import OneRunTokens
from lastiterate.lm.text_problem import TextProblem
from lastiterate.lm.texts import Texts, read_texts, split_texts
from lastiterate.lm.unseen_tokens import UnseenTokens

__all__ = ["OneRunTokens", "TextProblem", "Texts", "UnseenTokens", "read_texts", "second_moment", "split_texts"]
