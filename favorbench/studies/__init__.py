"""Studies beside the sweep, each with its figure: closed forms, speed, kernels, the blog post, audits, verification."""
