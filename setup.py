"""Packaging that pyproject.toml cannot say: the configs at the root are `harl/configs` in a wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["harl", "harl.*"]), "harl.configs"],
    package_dir={"harl.configs": "configs"},
    package_data={"harl.configs": ["*.yaml", "**/*.yaml"], "harl.hitl": ["schema.json", "page/**/*"]},
)
