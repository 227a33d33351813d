"""Checks of components before they cost anything: that they run, and that they keep the properties of a slot.

What differs between ablations is not judged here: a component may compute anything that keeps the properties.
"""
