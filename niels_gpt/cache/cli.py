"""`python -m niels_gpt.cache.cli`: another name of `niels-gpt cache`, because published instructions use it."""

if __name__ == "__main__":  # before the import of the commands, so that Ctrl-C is handled while they load
    from niels_gpt.cli.entry import run_app

    run_app("niels_gpt.cli.cache")

from niels_gpt.cli.cache import app

__all__ = ["app"]
