"""Composing models: recipes, rules, and the composed model."""
