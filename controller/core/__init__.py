"""The decision core: pure functions over frozen values, standard library only."""
