"""Whether a running server sees what is trained: `ng.check_serving`, `niels-gpt doctor serving`."""
