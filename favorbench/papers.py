"""The papers behind the maps, samplers, methods and baselines: for ``favorbench list maps --papers`` and BibTeX."""

import unicodedata
from typing import NamedTuple

#: LaTeX's accents, and what LaTeX reads as something else in plain text.
ACCENTS = {"\N{COMBINING DIAERESIS}": '"', "\N{COMBINING ACUTE ACCENT}": "'", "\N{COMBINING CARON}": "v",
           "\N{COMBINING CEDILLA}": "c"}  # fmt: skip
SPECIAL = "#$%&_"


class Paper(NamedTuple):
    """A publication. cited: how references name it, "Yu et al. 2016"."""

    key: str
    cited: str
    authors: str
    title: str
    venue: str
    arxiv: str = ""
    doi: str = ""

    @property
    def year(self) -> str:
        return self.cited.rpartition(" ")[2]

    @property
    def where(self) -> str:
        """Venue and identifier."""
        identifier = f"arXiv {self.arxiv}" if self.arxiv else f"doi {self.doi}" if self.doi else ""
        return ", ".join(part for part in (self.venue if self.venue != "arXiv" else "", identifier) if part)

    def bibtex(self) -> str:
        """One @misc entry, which every BibTeX style has."""
        identifier = {"eprint": self.arxiv, "archivePrefix": "arXiv"} if self.arxiv else {"doi": self.doi}
        fields = {
            "author": latex(self.authors),
            "title": "{" + latex(self.title) + "}",
            "year": self.year,
            "howpublished": latex(self.venue),
            **identifier,
        }
        lines = (f"  {name} = {{{value}}}," for name, value in fields.items() if value)
        return "\n".join([f"@misc{{{self.key},", *lines, "}"])


def latex(text: str) -> str:
    r"""Plain text in ASCII, as every BibTeX reads it: the classic one sorts and cuts names byte by byte.

    An accent is in braces with its letter: {\"o}, {\v{s}}. Raises KeyError for one that is not known here.
    """
    result = ""
    for letter in text:
        base, *marks = unicodedata.normalize("NFD", letter)
        for mark in marks:
            accent = ACCENTS[mark]
            base = f"{{\\{accent}{{{base}}}}}" if accent.isalpha() else f"{{\\{accent}{base}}}"
        result += f"\\{base}" if base in SPECIAL else base
    return result


PAPERS: tuple[Paper, ...] = (
    Paper(
        "eckart1936", "Eckart & Young 1936", "Eckart, Carl and Young, Gale",
        "The approximation of one matrix by another of lower rank", "Psychometrika 1", doi="10.1007/BF02288367",
    ),
    Paper(
        "hammersley1956", "Hammersley & Morton 1956", "Hammersley, John M. and Morton, Keith W.",
        "A new Monte Carlo technique: antithetic variates",
        "Mathematical Proceedings of the Cambridge Philosophical Society 52", doi="10.1017/S0305004100031455",
    ),
    Paper(
        "halton1960", "Halton 1960", "Halton, John H.",
        "On the efficiency of certain quasi-random sequences of points in evaluating multi-dimensional integrals",
        "Numerische Mathematik 2", doi="10.1007/BF01386213",
    ),
    Paper(
        "sobol1967", "Sobol' 1967", "Sobol', Ilya M.",
        "On the distribution of points in a cube and the approximate evaluation of integrals",
        "USSR Computational Mathematics and Mathematical Physics 7", doi="10.1016/0041-5553(67)90144-9",
    ),
    Paper(
        "matousek1998", "Matousek 1998", "Matoušek, Jiří",
        "On the L2-discrepancy for anchored boxes", "Journal of Complexity 14", doi="10.1006/jcom.1998.0489",
    ),
    Paper(
        "williams2001", "Williams & Seeger 2001", "Williams, Christopher K. I. and Seeger, Matthias",
        "Using the Nyström Method to Speed Up Kernel Machines", "NIPS 13",
    ),
    Paper(
        "glasserman2003", "Glasserman 2003", "Glasserman, Paul",
        "Monte Carlo Methods in Financial Engineering", "Springer", doi="10.1007/978-0-387-21617-1",
    ),
    Paper(
        "mezzadri2007", "Mezzadri 2007", "Mezzadri, Francesco",
        "How to generate random matrices from the classical compact groups", "Notices of the AMS 54", "math-ph/0609050",
    ),
    Paper(
        "rahimi2007", "Rahimi & Recht 2007", "Rahimi, Ali and Recht, Benjamin",
        "Random Features for Large-Scale Kernel Machines", "NIPS 20",
    ),
    Paper(
        "cho2009", "Cho & Saul 2009", "Cho, Youngmin and Saul, Lawrence K.",
        "Kernel Methods for Deep Learning", "NIPS 22",
    ),
    Paper(
        "kar2012", "Kar & Karnick 2012", "Kar, Purushottam and Karnick, Harish",
        "Random Feature Maps for Dot Product Kernels", "AISTATS 2012", "1201.6530",
    ),
    Paper(
        "pham2013", "Pham & Pagh 2013", "Pham, Ninh and Pagh, Rasmus",
        "Fast and Scalable Polynomial Kernels via Explicit Feature Maps", "KDD 2013", doi="10.1145/2487575.2487591",
    ),
    Paper(
        "sutherland2015", "Sutherland & Schneider 2015", "Sutherland, Danica J. and Schneider, Jeff",
        "On the Error of Random Fourier Features", "UAI 2015", "1506.02785",
    ),
    Paper(
        "yu2016", "Yu et al. 2016",
        "Yu, Felix X. and Suresh, Ananda Theertha and Choromanski, Krzysztof and Holtmann-Rice, Daniel and "
        "Kumar, Sanjiv",
        "Orthogonal Random Features", "NIPS 29", "1610.09072",
    ),
    Paper(
        "owen2017", "Owen 2017", "Owen, Art B.", "A randomized Halton algorithm in R", "arXiv", "1706.02808",
    ),
    Paper(
        "katharopoulos2020", "Katharopoulos et al. 2020",
        "Katharopoulos, Angelos and Vyas, Apoorv and Pappas, Nikolaos and Fleuret, François",
        "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention", "ICML 2020", "2006.16236",
    ),
    Paper(
        "choromanski2021", "Choromanski et al. 2021",
        "Choromanski, Krzysztof and Likhosherstov, Valerii and Dohan, David and Song, Xingyou and Gane, Andreea and "
        "Sarlos, Tamas and Hawkins, Peter and Davis, Jared and Mohiuddin, Afroz and Kaiser, Lukasz and Belanger, David "
        "and Colwell, Lucy and Weller, Adrian",
        "Rethinking Attention with Performers", "ICLR 2021", "2009.14794",
    ),
    Paper(
        "xiong2021", "Xiong et al. 2021",
        "Xiong, Yunyang and Zeng, Zhanpeng and Chakraborty, Rudrasis and Tan, Mingxing and Fung, Glenn and Li, Yin and "
        "Singh, Vikas",
        "Nyströmformer: A Nyström-based Algorithm for Approximating Self-Attention", "AAAI 2021",
        "2102.03902",
    ),
    Paper(
        "chen2021", "Chen et al. 2021",
        "Chen, Beidi and Dao, Tri and Winsor, Eric and Song, Zhao and Rudra, Atri and Ré, Christopher",
        "Scatterbrain: Unifying Sparse and Low-rank Attention Approximation", "NeurIPS 34", "2110.15343",
    ),
    Paper(
        "choromanski2022", "Choromanski et al. 2022",
        "Choromanski, Krzysztof and Chen, Haoxian and Lin, Han and Ma, Yuanzhe and Sehanobish, Arijit and Jain, "
        "Deepali and Ryoo, Michael S. and Varley, Jake and Zeng, Andy and Likhosherstov, Valerii and "
        "Kalashnikov, Dmitry and Sindhwani, Vikas and Weller, Adrian",
        "Hybrid Random Features", "ICLR 2022", "2110.04367",
    ),
    Paper(
        "likhosherstov2022", "Likhosherstov et al. 2022",
        "Likhosherstov, Valerii and Choromanski, Krzysztof and Dubey, Avinava and Liu, Frederick and Sarlos, Tamas and "
        "Weller, Adrian",
        "Chefs' Random Tables: Non-Trigonometric Random Features", "NeurIPS 35", "2205.15317",
    ),
    Paper(
        "zheng2022", "Zheng et al. 2022", "Zheng, Lin and Wang, Chong and Kong, Lingpeng",
        "Linear Complexity Randomized Self-attention Mechanism", "ICML 2022", "2204.04667",
    ),
    Paper(
        "likhosherstov2023", "Likhosherstov et al. 2023",
        "Likhosherstov, Valerii and Choromanski, Krzysztof and Dubey, Avinava and Liu, Frederick and Sarlos, Tamas and "
        "Weller, Adrian",
        "FAVOR#: Sharp Attention Kernel Approximations via New Classes of Positive Random Features", "NeurIPS 36, as "
        "Dense-Exponential Random Features: Sharp Positive Estimators of the Gaussian Kernel", "2302.00787",
    ),
    Paper(
        "reid2023", "Reid et al. 2023",
        "Reid, Isaac and Choromanski, Krzysztof and Likhosherstov, Valerii and Weller, Adrian",
        "Simplex Random Features", "ICML 2023", "2301.13856",
    ),
    Paper(
        "xiao2023", "Xiao et al. 2023",
        "Xiao, Guangxuan and Tian, Yuandong and Chen, Beidi and Han, Song and Lewis, Mike",
        "Efficient Streaming Language Models with Attention Sinks", "ICLR 2024", "2309.17453",
    ),
    Paper(
        "demni2023", "Demni & Kadri 2023", "Demni, Nizar and Kadri, Hachem",
        "Orthogonal Random Features: Explicit Forms and Sharp Inequalities", "TMLR", "2310.07370",
    ),
    Paper(
        "zandieh2023", "Zandieh et al. 2023",
        "Zandieh, Amir and Han, Insu and Daliri, Majid and Karbasi, Amin",
        "KDEformer: Accelerating Transformers via Kernel Density Estimation", "ICML 2023", "2302.02451",
    ),
    Paper(
        "zheng2023", "Zheng et al. 2023", "Zheng, Lin and Yuan, Jianbo and Wang, Chong and Kong, Lingpeng",
        "Efficient Attention via Control Variates", "ICLR 2023", "2302.04542",
    ),
    Paper(
        "han2024", "Han et al. 2024",
        "Han, Insu and Jayaram, Rajesh and Karbasi, Amin and Mirrokni, Vahab and Woodruff, David P. and Zandieh, Amir",
        "HyperAttention: Long-context Attention in Near-Linear Time", "ICLR 2024", "2310.05869",
    ),
    Paper(
        "reid2024", "Reid et al. 2024",
        "Reid, Isaac and Markou, Stratis and Choromanski, Krzysztof and Turner, Richard E. and Weller, Adrian",
        "Variance-Reducing Couplings for Random Features", "ICLR 2025", "2405.16541",
    ),
    Paper(
        "arora2024", "Arora et al. 2024",
        "Arora, Simran and Eyuboglu, Sabri and Zhang, Michael and Timalsina, Aman and Alberti, Silas and Zinsley, "
        "Dylan and Zou, James and Rudra, Atri and Ré, Christopher",
        "Simple linear attention language models balance the recall-throughput tradeoff", "ICML 2024", "2402.18668",
    ),
    Paper(
        "zhang2024", "Zhang et al. 2024",
        "Zhang, Jintao and Wei, Jia and Huang, Haofeng and Zhang, Pengle and Zhu, Jun and Chen, Jianfei",
        "SageAttention: Accurate 8-Bit Attention for Plug-and-play Inference Acceleration", "ICLR 2025", "2410.02367",
    ),
    Paper(
        "jiang2024", "Jiang et al. 2024",
        "Jiang, Huiqiang and Li, Yucheng and Zhang, Chengruidong and Wu, Qianhui and Luo, Xufang and Ahn, Surin and "
        "Han, Zhenhua and Abdi, Amir H. and Li, Dongsheng and Lin, Chin-Yew and Yang, Yuqing and Qiu, Lili",
        "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse Attention", "NeurIPS 37",
        "2407.02490",
    ),
    Paper(
        "carrell2025", "Carrell et al. 2025",
        "Carrell, Annabelle Michael and Gong, Albert and Shetty, Abhishek and Dwivedi, Raaz and Mackey, Lester",
        "Low-Rank Thinning", "ICML 2025", "2502.12063",
    ),
    Paper(
        "zhang2025", "Zhang et al. 2025",
        "Zhang, Jintao and Xiang, Chendong and Huang, Haofeng and Wei, Jia and Xi, Haocheng and Zhu, Jun and Chen, "
        "Jianfei",
        "SpargeAttn: Accurate Sparse Attention Accelerating Any Model Inference", "ICML 2025", "2502.18137",
    ),
    Paper(
        "xu2025", "Xu et al. 2025", "Xu, Ruyi and Xiao, Guangxuan and Huang, Haofeng and Guo, Junxian and Han, Song",
        "XAttention: Block Sparse Attention with Antidiagonal Scoring", "ICML 2025", "2503.16428",
    ),
    Paper(
        "yaras2025", "Yaras et al. 2025",
        "Yaras, Can and Xu, Alec S. and Abillama, Pierre and Lee, Changwoo and Balzano, Laura",
        "MonarchAttention: Zero-Shot Conversion to Fast, Hardware-Aware Structured Attention", "NeurIPS 2025",
        "2505.18698",
    ),
    Paper(
        "hooper2025", "Hooper et al. 2025",
        "Hooper, Coleman and Zhao, Sebastian and Manolache, Luca and Kim, Sehoon and Mahoney, Michael W. and Shao, "
        "Yakun Sophia and Keutzer, Kurt and Gholami, Amir",
        "Multipole Attention for Efficient Long Context Reasoning", "NeurIPS 2025", "2506.13059",
    ),
    Paper(
        "wang2025", "Wang et al. 2025",
        "Wang, Xinghao and Wang, Pengyu and Zhang, Dong and Tan, Chenkun and Zhou, Shaojun and Liu, Zhaoxiang and "
        "Lian, Shiguo and Liu, Fangxu and Song, Kai and Qiu, Xipeng",
        "Sparser Block-Sparse Attention via Token Permutation", "arXiv", "2510.21270",
    ),
    Paper(
        "li2026", "Li et al. 2026",
        "Li, Haopeng and Shao, Shitong and Zhong, Wenliang and Zhou, Zikai and Bai, Lichen and Xiong, Hui and Xie, "
        "Zeke",
        "PISA: Piecewise Sparse Attention Is Wiser for Efficient Diffusion Transformers", "arXiv", "2602.01077",
    ),
    Paper(
        "heinsen2026", "Heinsen & Kozachkov 2026", "Heinsen, Franz A. and Kozachkov, Leo",
        "Self-Attention at Constant Cost per Token via Symmetry-Aware Taylor Approximation", "arXiv", "2602.00294",
    ),
    Paper(
        "schroeder2026", "Schroeder & Mackey 2026", "Schröder, Tobias and Mackey, Lester",
        "WildCat: Near-Linear Attention in Theory and Practice", "arXiv", "2602.10056",
    ),
)  # fmt: skip


def cited_in(reference: str) -> list[Paper]:
    """The papers that a reference names, by year."""
    return [paper for paper in PAPERS if paper.cited in reference]
