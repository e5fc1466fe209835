"""Kernels as such: approximated Gram matrices against the exact one."""
