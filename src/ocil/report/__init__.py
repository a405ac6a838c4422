"""Tables and figures of results. Reads results and nothing else.

``collect``, ``cells``  find results, and group them to cells
``papers``              a paper's tables as data: rows, settings, published numbers
``comparison``          measured cells in the rows and columns of a paper
``result_tables``       which tables there are, and what stands in them
``table``               the model of a table, written as Markdown, CSV, LaTeX, HTML or for a terminal
``longtail``            the tables of the long-tailed study
``figures``, ``plots``  which figures there are, and how each is drawn; ``formulas``, ``style``
``page``, ``write``     the offline page, and all files of a report
``show``                one cell on the terminal
``examples``            images of old classes with the scores of finished learners
"""
