"""Will the components interfere? Label-free measures, probing a recipe with prompts, and the report."""
