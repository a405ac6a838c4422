"""Tables and figures of results. Reads results and nothing else.

``collect``, ``cells``  find results, and group them to cells
``entries``             rows and columns of any results: methods with their settings; datasets, streams, memory sizes
``quantities``, ``cost``  what tables show of a run: measures and costs
``ranking``, ``standings``  mean ranks, paired differences, who is ahead; ``headline`` says it in words
``cost_figure``         the first figure of the page: accuracy against cost
``papers``              a paper's tables as data: rows, settings, published numbers
``comparison``          measured cells in the rows and columns of a paper
``standing_tables``, ``measure_tables``, ``result_tables``  which tables there are, and what stands in them
``table``               the model of a table, and its writers; ``html_table``, ``terminal_table``: two further ones
``formatting``          numbers as text
``longtail``            the tables of the long-tailed study
``figures``, ``plots``  which figures there are, and how each is drawn; ``drawings``, ``formulas``, ``style``
``rendering``           draws many figures in worker processes
``records``, ``record_figures``, ``record_plots``  the same for what runs recorded: over time, per class, cost
``stream_figure``       what arrives when in a stream
``page``, ``write``     the offline page, and all files of a report; ``explore``: what the page's script filters by
``show``                one cell on the terminal
``examples``            images of old classes with the scores of finished learners
"""
