"""The journey of a bundle, one file for each stage.

``accept`` stores an upload and queues it. ``send`` picks whom to serve and gives the bundle to an
agent. ``get`` follows what agents report and fetches results. ``cancel`` ends a job for certain.
``clean`` removes what has expired. ``recover`` puts right what a crash left, before anything else
starts.
"""
