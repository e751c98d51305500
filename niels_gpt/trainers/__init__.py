"""Batches of episodes under the names and in the shapes that trainers ask for.

::

    fields.py        a batch under the names of Hugging Face, Megatron, torchtitan or prime-rl
    accumulation.py  gradient accumulation weighted by trained tokens
    steps.py         map-style: the batch of any step, in any order; a DataLoader of epochs
    hugging_face.py  a transformers.Trainer that reads episodes          (needs transformers)
    lightning.py     a LightningDataModule with a state                  (needs lightning)
    rollouts.py      turns that a server sampled, as one row to train on
"""
