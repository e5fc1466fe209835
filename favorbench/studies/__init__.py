"""Studies, each with its figure: closed forms, speed, kernels, the blog post, audits, verification."""
