"""LastIterateAccountant takes the relations of dp-accounting and nothing else."""

import pytest

from lastiterate.integrations.dp_accounting import LastIterateAccountant


@pytest.mark.parametrize("relation", [2, 1, "replace", None, True])
def test_what_is_no_relation_is_refused(relation):
    with pytest.raises(
        ValueError, match=r"^neighboring_relation must be one of NeighboringRelation\.ADD_OR_REMOVE_ONE"
    ):
        LastIterateAccountant(relation)
