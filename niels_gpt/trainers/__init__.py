"""Batches of episodes under the names and in the shapes that trainers expect.

::

    fields.py        a batch under the names of Hugging Face, Megatron, torchtitan or prime-rl
    steps.py         the batch of any step by number; a DataLoader of epochs; gradient accumulation by trained tokens
    hugging_face.py  a transformers.Trainer that reads episodes          (needs transformers)
    trl_preferences.py  TRL's DPO and KTO trainers on exported ids          (needs trl)
"""
