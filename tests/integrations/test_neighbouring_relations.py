"""LastIterateAccountant takes the relations of dp-accounting and nothing else."""

import dp_accounting
import pytest

from lastiterate.integrations.dp_accounting import LastIterateAccountant


@pytest.mark.parametrize("relation", [2, 1, "replace", None, True])
def test_what_is_no_relation_is_refused(relation):
    with pytest.raises(
        ValueError, match=r"^neighboring_relation must be one of NeighboringRelation\.ADD_OR_REMOVE_ONE"
    ):
        LastIterateAccountant(relation)


@pytest.mark.parametrize("name", ["ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL", "REPLACE_ONE"])
def test_relations_are_kept(name):
    relation = dp_accounting.NeighboringRelation[name]
    assert LastIterateAccountant(relation).neighboring_relation is relation
