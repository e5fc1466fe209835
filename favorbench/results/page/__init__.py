"""A run, or two compared, as one page that can be sent."""

from favorbench.results.page.document import LIMIT, Page, comparison_page, page, write_comparison, write_page

__all__ = ["LIMIT", "Page", "comparison_page", "page", "write_comparison", "write_page"]
