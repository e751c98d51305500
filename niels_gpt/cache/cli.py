"""`python -m niels_gpt.cache.cli build-all`, the entry point that document "SFT caches" publishes."""

if __name__ == "__main__":  # before the import of the commands, so that Ctrl-C is handled while they load
    from niels_gpt.cli.entry import run_app

    run_app("niels_gpt.cli.corpora")

from niels_gpt.cli.corpora import app

__all__ = ["app"]
