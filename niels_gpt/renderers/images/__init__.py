"""Images of conversations: from a part of a message to the processor's arrays.

::

    loading.py      the forms that an image in a message may have, and how it is loaded
    processors.py   `Images`: the model's image processor, with a cache;  `MultiModalData`: what it made of the images
                    of a rendering, and where their placeholder tokens are
    stored.py       `StoredImages`: those of a dataset, made when it is read
"""
