"""Label review: audits of sites, lists of suspicious samples, and decisions of human reviewers.

`site` has everything that reads samples, and `server` what follows from both messages of all sites; neither imports the other.
`messages` and `rounding` are what both agree on.  `audit` runs both in a simulation, and `report` writes the results.  Then
follow `suspects`, `decisions`, `designs` and `guarantees` (reviews), and `crowd`, `votes` and `consensus` (annotators).
"""
