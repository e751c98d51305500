"""The command line: a module for each command or group of commands, and what they share.

::

    main.py           the names of all commands; each module is imported when its command is run
    entry.py          the console script, which ends quietly after Ctrl-C

    demo.py           demo
    tokenizer.py      tokenizer train
    datasets.py       info, verify, pack: of a dataset of any kind; and what a build prints at its end
    build.py          build; recipes.py is its part for recipes
    corpora.py        build-all of `python -m niels_gpt.cache.cli`
    show.py           show and render
    explore.py        explore                                     exchange.py         export, import, publish, fetch
    doctor.py         doctor                                      doctor_template.py  doctor template
    catalogue.py      renderers, rules

    options.py        options that several commands share
    paths.py          checks of paths before anything is loaded
    terminal.py       consoles, progress, results, and errors as one line with an exit code
    app.py            how help pages look
"""
