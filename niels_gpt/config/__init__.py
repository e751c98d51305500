"""The training configuration of "Episode-Indexed SFT Loader", from keywords or from the `<training>` of an XML file.

A training job imports this without an XML library; only reading a file needs defusedxml.
"""

from niels_gpt.config.fields import TrainingConfig, example_xml
from niels_gpt.config.reading import parse_training_config, read_training_config

__all__ = ["TrainingConfig", "example_xml", "parse_training_config", "read_training_config"]
