from torch.utils.data import DataLoader, DistributedSampler

from template.data.dataset import collate
from template.data.phantom import Phantom


class Broken(Phantom):
    def train_dataloader(self):
        dataset = self._dataset(self.cases("train"), [])
        return DataLoader(dataset, batch_size=4 // self.trainer.world_size, shuffle=True, collate_fn=collate)


class Healthy(Phantom):
    def train_dataloader(self):
        dataset, ranks = self._dataset(self.cases("train"), []), self.trainer.world_size
        sampler = DistributedSampler(dataset, ranks, self.trainer.global_rank, shuffle=True)
        return DataLoader(dataset, batch_size=4 // ranks, sampler=sampler, collate_fn=collate)
