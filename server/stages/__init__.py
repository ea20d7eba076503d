"""The stages of a job, one file for each.

``accept`` stores an upload and queues it. ``send`` chooses the next jobs and claims them for
agents, and ``deliver`` sends them. ``get`` follows what agents report and fetches results. ``poll``
does that for agents without events. ``cancel`` ends a job. ``clean`` removes what has expired.
``recover`` runs at the start, before anything else, and removes what a crash left.
"""
