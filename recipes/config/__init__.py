"""Configuration of a run as plain values: in Python, on disk, on the command line."""

from recipes.config.files import (
    about_loss,
    differences,
    numbers,
    plugins,
    read_recipe,
    recipe_of,
    recipe_yaml,
)
from recipes.config.paces import at_once, fitting, make_pace, own_times
from recipes.config.recipe import WARM_UP, Data, Hardware, Optimizer, Output, Recipe
from recipes.config.run_context import ModelContext, RunContext
from recipes.config.times import IN_STRATA, UNIFORM, check_times, time_density
from recipes.config.validation import at_least, check_keys, of_types

__all__ = [
    "IN_STRATA",
    "UNIFORM",
    "WARM_UP",
    "Data",
    "Hardware",
    "ModelContext",
    "Optimizer",
    "Output",
    "Recipe",
    "RunContext",
    "about_loss",
    "at_least",
    "at_once",
    "check_keys",
    "check_times",
    "differences",
    "fitting",
    "make_pace",
    "numbers",
    "of_types",
    "own_times",
    "plugins",
    "read_recipe",
    "recipe_of",
    "recipe_yaml",
    "time_density",
]
