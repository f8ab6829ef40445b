"""The recipes, by architecture; where transformers has an architecture and its table says nothing, the general rule does."""

from __future__ import annotations

import transformers

from tests.registry.recipes import (
    multimodal_remote_code,
    multimodal_transformers,
    text_remote_code_a_to_k,
    text_remote_code_l_to_z,
    text_transformers,
)
from tests.registry.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    **text_transformers.RECIPES,
    **text_remote_code_a_to_k.RECIPES,
    **text_remote_code_l_to_z.RECIPES,
    **multimodal_transformers.RECIPES,
    **multimodal_remote_code.RECIPES,
}


def recipe_for(architecture: str) -> Recipe | None:
    """The recipe of an architecture; None if neither transformers nor a table has it."""
    if architecture in RECIPES:
        return RECIPES[architecture]
    return Recipe(architecture) if hasattr(transformers, architecture) else None
