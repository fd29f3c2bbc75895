"""Label review: audits of sites, lists of suspicious samples, and decisions of human reviewers.

In reading order: `samples` and `summaries` (both messages of a site), `own_model` and `copies` (results that stay at the site),
`shifts` and `column_differences` (inputs), `statistics`, `verdict` and `results` (findings), `audit` (all sites), `private`
(sums with noise), `report`; then `suspects`, `decisions`, `designs` and `guarantees` (reviews),
and `crowd`, `votes` and `consensus` (annotators).
"""
